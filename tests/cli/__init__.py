"""The command line, to the letter of DESIGN section 9."""
