#!/bin/sh
# The main job on a built-in data set: make a graph, check it, train two models on it, and see that they beat baselines.
set -eu
folder=${1:-demo}
rm -rf "$folder"
mkdir -p "$folder"
echo "== a graph of drifting communities, and is it sound?"
timeloom synth drift --out "$folder/drift"
timeloom check "$folder/drift"
echo "== what it is like"
timeloom info "$folder/drift"
echo "== predict every node's next degree, as two processes scheduled by REAL"
timeloom train "$folder/drift" --model tgcn --task degree --system real --workers 2 --set train.epochs=60 \
    --set window.length=4 --out "$folder/degree"
echo "== predict every node's class, which only the past tells"
timeloom train "$folder/drift" --model gcn_gru --task classes --set train.epochs=40 --out "$folder/classes"
echo "== does anything depend on the future?"
timeloom check "$folder/classes" --leak
echo "== what comes next"
timeloom predict "$folder/degree" --out "$folder/next.parquet"
echo "== both runs to look at: open $folder/report.html in a browser"
timeloom report "$folder/degree" "$folder/classes" --out "$folder/report.html"
