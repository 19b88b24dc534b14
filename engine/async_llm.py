"""The engine as an asyncio service: what the agent's HTTP handlers call.

Text goes in and text comes out; the engine cores are processes of their own (or, for tests, a
thread of this one).
"""
