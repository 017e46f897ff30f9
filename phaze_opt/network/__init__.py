"""What a cluster looks like, and what every collective and message on it costs."""
