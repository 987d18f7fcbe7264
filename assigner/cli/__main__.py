from assigner.cli import main

main()
