"""Scripts of the development process; none of them is part of the service."""
