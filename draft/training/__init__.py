"""Training a draft against a frozen target.

    examples         one sequence with what the target felt while reading it
    blocks           which tokens are anchors, and the blocks that follow them
    dense_attention  where a training block's queries meet their keys
    forward          all blocks of a micro-batch at once, taught with the true tokens
    compiling        the same compiled, if it says the same
    loss             the three terms, and how good the guesses are
    recipe           the numbers of a training, and what they are at a given step
    initialising     a new network: from scratch or from the target's own layers
    trainer          steps, from a state to the next
    checkpoints      a killed training continues where its last checkpoint stands
    validating       the same numbers on sequences that were held out
    feature_store    hidden states on disk, within a budget
    features         examples whose hidden states lie there
    export           a network as a DeepSpec checkpoint folder
    curves           the log as a picture

Nothing here knows how the hidden states are computed: a function does it.
"""
