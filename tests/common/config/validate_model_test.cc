// Rules of [model].
#include "tests/common/config/broken_rules.h"

using namespace sortie::config;
using namespace sortie::test;

TEST_CASE("each rule of models names the numbers and what to do") {
  const BrokenRule rows[] = {
      {[](JobConfig& job) { job.model.attention_num_kv_heads = 3; },
       "T5 model.attention_num_kv_heads: model.num_attention_heads = 4 is no multiple of 3; use 2 "
       "or 4"},
      {[](JobConfig& job) { job.model.attention_num_kv_heads = 8; },
       "T5 model.attention_num_kv_heads: model.num_attention_heads = 4 is no multiple of 8; use "
       "4"},
      {[](JobConfig& job) { job.model.attention_num_kv_heads = 2; }, ""},
      {[](JobConfig& job) {
         job.model.architecture = "gpt-neo-x";
         job.model.attention_num_kv_heads = 2;
       },
       "T5 model.attention_num_kv_heads: gpt-neo-x has as many key and value heads as query heads, "
       "4, not 2; use 4, or 0"},
      {[](JobConfig& job) { job.model.hidden_size = 250; },
       "T5 model.hidden_size: 250 is no multiple of model.num_attention_heads = 4; use 248 or 252, "
       "or set model.head_dim"},
      {[](JobConfig& job) {
         job.model.hidden_size = 250;
         job.model.head_dim = 64;
       },
       ""},
      {[](JobConfig& job) { job.model.rotary_percentage = 0.3; },
       "T5 model.rotary_percentage: RoPE rotates pairs, and 0.3 of a head width of 64 is 19.2, not "
       "an even number from 2; use rotary_percentage = 0.28125 or 0.3125 (18 or 20 of 64)"},
      {[](JobConfig& job) { job.model.rotary_percentage = 0.01; },
       "T5 model.rotary_percentage: RoPE rotates pairs, and 0.01 of a head width of 64 is 0.64, "
       "not "
       "an even number from 2; use rotary_percentage = 0.03125 (2 of 64)"},
      {[](JobConfig& job) { job.model.head_dim = 1; },
       "T5 model.rotary_percentage: RoPE rotates pairs, and 1.0 of a head width of 1 is 1, not an "
       "even number from 2; use a head width of 2 or more"},
      {[](JobConfig& job) { job.model.head_dim = 33; },
       "T5 model.rotary_percentage: RoPE rotates pairs, and 1.0 of a head width of 33 is 33, not "
       "an "
       "even number from 2; use an even head width"},
      {[](JobConfig& job) { job.model.rotary_percentage = 0.25; }, ""},
      {[](JobConfig& job) {
         job.model.head_dim = 20;
         job.model.rotary_percentage = 0.1;
       },
       ""},
      {[](JobConfig& job) {
         job.model.architecture = "gpt2";
         job.model.rotary_percentage = 0.3;  // ignored: gpt2 has no RoPE
       },
       ""},
      {[](JobConfig& job) {
         job.model.architecture = "gpt2";
         job.model.head_dim = 32;
       },
       "T5 model.head_dim: the heads of gpt2 are cut from the hidden size, and 4 heads of 32 are "
       "not 256; use 0"},
      {[](JobConfig& job) {
         job.model.architecture = "qwen2";
         job.model.rotary_percentage = 0.5;
       },
       "T5 model.rotary_percentage: qwen2 rotates whole heads; use 1.0"},
      {[](JobConfig& job) { job.model.attention_window = 16; },
       "M1 model.attention_window: llama has no local layers; remove it"},
      {[](JobConfig& job) { job.model.attention_layers = {"local"}; },
       "M1 model.attention_layers: llama has no local layers; remove it"},
      {[](JobConfig& job) {
         job.model.architecture = "mistral";
         job.model.attention_layers = {"global", "local"};
       },
       "M1 model.attention_layers: has local layers, but no model.attention_window says how far "
       "they see; set it"},
      {[](JobConfig& job) {
         job.model.architecture = "gpt-neo";
         job.model.attention_layers = {"global", "local"};
       },
       ""},
      {[](JobConfig& job) {
         job.model.architecture = "gpt-neo";
         job.model.rope_scaling = "linear";
       },
       "M2 model.rope_scaling: gpt-neo has no RoPE; remove it"},
      {[](JobConfig& job) {
         job.model.rope_scaling = "llama3";
         job.model.rope_scaling_high_frequency = 1.0;
       },
       "M2 model.rope_scaling_high_frequency: 1.0 is not above rope_scaling_low_frequency = 1.0; "
       "raise it"},
      {[](JobConfig& job) { job.model.document_end_token = 256; },
       "M4 model.document_end_token: 256 is outside of the vocabulary of 256; use -1, or an id "
       "below it"},
      {[](JobConfig& job) { job.model.reset_positions = true; },
       "M4 model.reset_positions: no model.document_end_token says where documents end; set it"},
      {[](JobConfig& job) { job.model.moe.topk = 3; },
       "X2 model.moe.topk: llama has no use for it; remove it"},
      {[](JobConfig& job) {
         job.model.architecture = "mixtral";
         job.model.moe.num_groups = 2;
       },
       "X2 model.moe.num_groups: mixtral has no use for it; remove it"},
      {[](JobConfig& job) {
         job.model.architecture = "qwen3-moe";
         job.model.mtp.num_layers = 1;
       },
       "X2 model.mtp.num_layers: qwen3-moe has no use for it; remove it"},
      {[](JobConfig& job) {
         job.model.architecture = "mixtral";
         job.model.moe.topk = 9;
       },
       "X1 model.moe.topk: a token can choose among 8 experts, not 9 of them; use 8 or less"},
      {[](JobConfig& job) {
         job.model.architecture = "deepseek-v3";
         job.model.moe.num_groups = 3;
       },
       "X1 model.moe.num_groups: 3 groups of 8 experts are not equal; use a divisor"},
      {[](JobConfig& job) {
         job.model.architecture = "deepseek-v3";
         job.model.moe.num_groups = 4;
         job.model.moe.group_topk = 5;
       },
       "X1 model.moe.group_topk: there are 4 groups, 5 can not be chosen; use 4 or less"},
      {[](JobConfig& job) {
         job.model.architecture = "deepseek-v3";
         job.model.moe.num_groups = 4;
         job.model.moe.topk = 3;
       },
       "X1 model.moe.topk: a token can choose among 2 experts, not 3 of them; use 2 or less"},
      {[](JobConfig& job) { job.model.moe.capacity_factor = 1.25; },
       "X2 model.moe.capacity_factor: llama has no use for it; remove it"},
      {[](JobConfig& job) {
         job.model.architecture = "mixtral";
         job.model.moe.capacity_factor = 1.25;
       },
       ""},
      {[](JobConfig& job) {
         job.model.architecture = "mixtral";
         job.model.moe.capacity_factor = 0.125;
       },
       "X4 model.moe.capacity_factor: experts would take at most 0.125 of the choices; use 0.25 "
       "or more, or 0 for all"},
      {[](JobConfig& job) {
         job.model.architecture = "deepseek-v3";
         job.model.mla.qk_rope_head_dim = 7;
       },
       "X3 model.mla.qk_rope_head_dim: RoPE rotates pairs, 7 is odd; use 8"},
      {[](JobConfig& job) {
         job.model.architecture = "deepseek-v3";
         job.model.hidden_size = 250;  // MLA heads do not divide the hidden size
       },
       ""},
      {[](JobConfig& job) { job.model.num_positions = 100; },
       "M3 model.num_positions: 100 is less than model.sequence_length = 256; use 0, or shorter "
       "sequences"},
  };
  check_rules(rows);
}
