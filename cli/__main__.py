"""`python -m pagelet.cli` is the command `pagelet`, wherever its script was installed to."""

from pagelet.cli.main import main

if __name__ == "__main__":
    main()
