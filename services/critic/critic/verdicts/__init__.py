"""Reading verdicts out of a judge's text: one grammar per kind of verdict, one reader for all."""
