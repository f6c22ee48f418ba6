from routemaster.cli.app import main

main()
