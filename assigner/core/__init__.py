"""Pure decisions: (state, event, now) in, actions and the next wake-up out. No asyncio, no clock, no I/O."""
