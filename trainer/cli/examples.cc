#include "trainer/cli/examples.h"

#include <CLI/CLI.hpp>
#include <string>

namespace sortie::trainer {
namespace {

struct Examples {
  std::string_view verb;  // "data build"; "" = the program itself
  const char* footer;
};

constexpr Examples kAllExamples[] = {
    {"", R"(Examples:
  sortie-train data build --tokenizer byte --split 99,1 -o data/headers /usr/include     text to token files
  sortie-train generate --checkpoint runs/ckpt --prompt 'Once'                           continue a text
  sortie-train checkpoint ls runs/ckpt                                                   lists checkpoints
  sortie-train import ~/models/pythia-70m runs/pythia                                    from Hugging Face

`sortie run job.toml` starts training, on this machine or on many hosts.
)"},
    {"train", R"(Examples:
  sortie run job.toml               starts all ranks of a job; each rank runs `sortie-train train`
  sortie-train train job.toml       trains with a single rank, on this machine

Without a config, the file named by SORTIE_CONFIG is read. RANK and WORLD_SIZE set the rank and the world size.
)"},
    {"plan", R"(Examples:
  sortie-train plan job.toml                                       parameters, operations, memory of a rank
  sortie-train plan job.toml --world 64 --micro-batch 2 --json     as JSON
  sortie-train plan job.toml --set topology.activation_checkpointing_type=every_layer

`sortie plan` calls this command for its lines about the model.
)"},
    {"generate", R"(Examples:
  sortie-train generate runs/ckpt --prompt 'Once upon a time' --max-tokens 200
  sortie-train generate runs/ckpt --prompt 'def ' --temperature 0                   always the most likely token
  sortie-train generate runs/ckpt --top-p 0.9 --seed 7 --stop '<|im_end|>'          stops before this text
)"},
    {"eval", R"(Examples:
  sortie-train eval runs/ckpt --data data/headers-validation                loss, perplexity, bits per byte
  sortie-train eval runs/ckpt --data data/a data/b --samples 200 --json     as JSON
  sortie-train eval runs/ckpt --chat conversations.jsonl                    loss of the answers
  sortie-train eval runs/ckpt --multiple-choice questions.jsonl             accuracy
)"},
    {"merge-lora", R"(Examples:
  sortie-train merge-lora runs/lora runs/merged     adds the LoRA updates of the newest checkpoint to its weights
)"},
    {"import", R"(Examples:
  sortie-train import ~/models/pythia-70m runs/pythia     a Hugging Face folder with config.json and safetensors
  sortie-train import gpt2_124M.bin runs/gpt2             a file of llm.c
)"},
    {"export", R"(Examples:
  sortie-train export runs/ckpt out/model                    a folder that transformers can load
  sortie-train export runs/ckpt out/model --dtype bf16       half the size
)"},
    {"probe", R"(Examples:
  sortie-train probe runs/ckpt --tokens tokens.json --out probe.safetensors
  sortie-train probe ~/models/pythia-70m --tokens t.json --out p.safetensors --gradients --activations 'layers.*.mlp.down'
)"},
    {"data", R"(Examples:
  sortie-train data build --tokenizer hf:tokenizer.json --json-key text -o data/web 'crawl/*.jsonl.gz'
  sortie-train data inspect data/web
  sortie-train data train-tokenizer --type bpe --vocab-size 32000 -o tokenizer.json 'text/*.txt'
)"},
    {"data build", R"(Examples:
  sortie-train data build --tokenizer byte --split 99,1 -o data/headers /usr/include        headers-train and -validation
  sortie-train data build --tokenizer hf:tokenizer.json --json-key text --append-eod -o data/web 'crawl/*.jsonl.gz'
  sortie-train data build --tokenizer sentencepiece:m.model --include '*.txt' -o data/books books/
)"},
    {"data inspect", R"(Examples:
  sortie-train data inspect data/headers-train                  sizes, checks, the first tokens as text
  sortie-train data inspect data/headers-train --tokens 500     more of them
)"},
    {"data train-tokenizer", R"(Examples:
  sortie-train data train-tokenizer --vocab-size 32000 -o m.model 'text/*.txt'                     sentencepiece
  sortie-train data train-tokenizer --type bpe --vocab-size 32000 -o tokenizer.json 'text/*.txt'   for transformers
)"},
    {"bench", R"(Examples:
  sortie run --hosts 'h[01-04]' -- sortie-train bench comm     collectives of 4 ranks
  sortie-train bench step job.toml                             passes and update of a model on one rank
  sortie-train bench matmul --rows 4096 --out 4096 --in 4096   products of one rank
)"},
    {"bench step", R"(Examples:
  sortie-train bench step job.toml                                         the model of the job, for 1, 2 and 4 sequences
  sortie-train bench step job.toml --layers 2 --micro-batches 8            2 layers of a model that is too large for one rank
  sortie exec --hosts 'h[01-04]' --no-prefix -- sortie-train bench step "$PWD/job.toml" --json > measured.json
)"},
    {"bench comm", R"(Examples:
  sortie run --hosts 'h[01-04]' -- sortie-train bench comm --op all_reduce --from 64KB --to 256MB
  sortie run job.toml -- sortie-train bench comm --links --json      all pairs of hosts and the ring, as JSON

size: bytes of the larger of input and output. algbw: size / time. busbw: traffic of a link, on d ranks algbw x 2 (d - 1) / d for
all_reduce, x (d - 1) / d for reduce_scatter, all_gather and all_to_all, x 1 for broadcast and ring. 1 GB/s is 10^9 bytes/s.
)"},
    {"devices", R"(Examples:
  sortie-train devices                                             the GPUs of this host, or why none can be used
  sortie exec --hosts @gpu --fold -- sortie-train devices --json   the GPUs of many hosts, as JSON
)"},
    {"bench matmul", R"(Examples:
  sortie-train bench matmul                                        1024 x 3072 x 768, an MLP of GPT-2 124M
  OMP_NUM_THREADS=1 sortie-train bench matmul --dtype f32 --json   one thread, as JSON
)"},
    {"bench copy", R"(Examples:
  sortie-train bench copy                 copies 256 MB
  sortie-train bench copy --bytes 1MB     copies 1 MB, which stays in the caches
)"},
    {"checkpoint", R"(Examples:
  sortie-train checkpoint ls runs/ckpt           lists checkpoints, newest first
  sortie-train checkpoint verify runs/ckpt       reads all files and compares their hashes
  sortie-train checkpoint model runs/pythia      prints the [model] section for a config
)"},
};

CLI::App& verb_named(CLI::App& root, std::string_view words) {
  CLI::App* level = &root;
  while (!words.empty()) {
    const std::size_t end = std::min(words.find(' '), words.size());
    level = level->get_subcommand(std::string(words.substr(0, end)));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return *level;
}

}  // namespace

void set_examples(CLI::App& root) {
  for (const Examples& entry : kAllExamples) verb_named(root, entry.verb).footer(entry.footer);
}

}  // namespace sortie::trainer
