"""Plans that people can write, against the whole plans that a search finds."""
