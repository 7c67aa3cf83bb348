"""Studio: pages for people, at `/studio/`. What is served, what runs now, and environments to try by hand."""
