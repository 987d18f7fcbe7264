from assigner.cli.demonstrating import demo

demo()
