"""Reports over graded rows: pure, no transport."""
