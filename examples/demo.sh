#!/bin/sh
# The main job on a built-in data set: make a graph, look at it, check it, go on with it.
set -eu
folder=${1:-demo}
rm -rf "$folder"
mkdir -p "$folder"
echo "== a graph of drifting communities"
timeloom synth drift --out "$folder/drift"
echo "== what it is like"
timeloom info "$folder/drift"
echo "== is it sound?"
timeloom check "$folder/drift"
echo "== a table of events of your own: made here by writing the graph back"
timeloom export "$folder/drift" --out "$folder/edges.parquet"
timeloom ingest "$folder/edges.parquet" --source source --target target --time time --weight weight \
    --every 5 --out "$folder/again"
timeloom info "$folder/again"
