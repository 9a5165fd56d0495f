#!/usr/bin/env bash
# The main job, from nothing: sets the machine up, builds, trains a GPT of 10.8 M parameters on the King James Bible byte by
# byte (half an hour or more on two cores without bf16 arithmetic), and lets it write a sample. Run it again to see that a finished job
# stays finished; stop it with Ctrl-C and run it again to see it go on. In an unpacked bundle nothing is set up or built.
# Usage: deploy/demo.sh [folder, default runs/demo]
set -euo pipefail
cd "$(dirname "$0")/.."
terrace=bin/terrace
if [ ! -x $terrace ]; then
  deploy/setup.sh
  terrace=build/release/bin/terrace
fi

folder=${1:-runs/demo}
mkdir -p "$folder"
if [ ! -s "$folder/bible.txt" ]; then
  if [ -s share/bible.txt ]; then cp share/bible.txt "$folder/bible.txt.part"; else bible -f gen1:1-rev22:21 > "$folder/bible.txt.part"; fi
  mv "$folder/bible.txt.part" "$folder/bible.txt"
fi

# bf16 pays where the CPU multiplies it in hardware.
precision=fp32
grep -qE 'amx_bf16|avx512_bf16' /proc/cpuinfo && precision=bf16

cat > "$folder/job.yaml" <<YAML
# yaml-language-server: \$schema=../../docs/job.schema.json
name: bible
model: {config: gpt-bytes-10m}
data: {train: bible.txt, tokenizer: bytes, sequence_length: 256}
train:
  steps: 1600
  global_batch: 8
  optimizer: {lr: 1.2e-3, betas: [0.9, 0.95], weight_decay: 0.1}
  schedule: {name: cosine, warmup_steps: 60, min_lr: 1.2e-4}
  precision: $precision
  eval_every_steps: 200
  eval_batches: 32
checkpoint: {directory: checkpoints, every_steps: 400, keep: 2}
YAML

"$terrace" run "$folder/job.yaml"

newest=$(ls -d "$folder"/checkpoints/step-* | sort | tail -n 1)
echo
echo "a sample:"
"$terrace" generate "$newest" --prompt "And it came to pass" --tokens 300
