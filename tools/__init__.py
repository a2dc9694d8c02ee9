"""What the Makefile runs before there is an environment: standard library only, on any Python from 3.6 on."""
