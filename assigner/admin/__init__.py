"""What operators do to a group, behind the Admin service: look, change options, publish loads, delete."""
