"""Grammars that answers keep to: asked for, checked, compiled, and followed token by token.

    asked      what a client wrote           framing    what stands around it: thoughts, calls
    writing    in the library's own form     probing    tried in a process that can be ended
    compiling  for the model's tokens        following  one answer's way, the engine's TokenMask

Nothing is imported here, so that the process that tries grammars stays small.
"""
