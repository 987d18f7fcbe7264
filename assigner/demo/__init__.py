"""The demo: an assigner, four workers and a minute of their life, as a moving picture in the terminal."""
