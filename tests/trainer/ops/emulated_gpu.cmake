# The op tests that run on the emulated GPU as well: patterns of their names, one per line.
set(SORTIE_EMULATED_OPS
  "add is the rounded sum*"
  "dropout keeps the share*"
  # Attention, RoPE and latent keys.
  "attention equals the reference*"
  "a token sees no later token"
  "scores far apart*"
  "a NaN in q*"
  "attention has the same bits*"
  "masked attention equals*"
  "attention over many tiles*"
  "many tiles give the same bits*"
  "attention over parts of keys*"
  "keys that no query sees*"
  "attention takes any size*"
  "attention sums gradients*"
  "attention takes views*"
  "attention over kept keys*"
  "RoPE equals the reference*"
  "RoPE turns by the given positions"
  "interleaved RoPE*"
  "keys of latent attention*"
)
