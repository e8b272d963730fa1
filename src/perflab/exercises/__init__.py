"""One module an exercise: its contract, its judge, its public cases."""
