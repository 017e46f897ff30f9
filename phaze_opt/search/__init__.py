"""Many points: study specifications, storage, workers and samplers."""
