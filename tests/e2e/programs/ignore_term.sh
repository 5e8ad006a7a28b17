# A rank that ignores TERM, as do its children.
trap '' TERM
echo "rank $RANK is stubborn"
while :; do sleep 0.2; done
