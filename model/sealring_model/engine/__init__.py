"""The engine process: reads messages, carries out steps, answers."""
