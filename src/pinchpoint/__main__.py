"""`python -m pinchpoint`: the command line without its script being on the path."""

from pinchpoint.cli.main import main

if __name__ == "__main__":
    main()
