"""What graders may use besides the sample: one seam per file, each with a stand-in that says what is missing."""
