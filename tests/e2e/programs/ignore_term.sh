# A rank that does not listen to TERM, and neither do its children.
trap '' TERM
echo "rank $RANK is stubborn"
while :; do sleep 0.2; done
