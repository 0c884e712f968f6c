"""One file per verb; heavy imports happen inside the functions, so that --help is quick."""
