# The op tests that run on the emulated GPU as well: patterns of their names, one per line.
set(SORTIE_EMULATED_OPS
  "add is the rounded sum*"
  "dropout keeps the share*"
)
