"""Elastic jobs: parameter servers join and leave while a job trains, and the variables are shared out anew."""
