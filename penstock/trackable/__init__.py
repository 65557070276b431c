"""Objects that are saved together with the objects that they hold, and the containers that take part in it."""
