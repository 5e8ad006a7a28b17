// Checks of text that has a form of its own. Each gives "why; what to do", and nothing for good
// text.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sortie::config {

std::string check_host_item(std::string_view text);
std::string check_user(std::string_view text);
std::string check_address(std::string_view text);
std::string check_launcher_loss(std::string_view text);
/// How long hosts hold their ranks by runner.on_launcher_loss; 0: not at all.
std::chrono::milliseconds launcher_hold(std::string_view on_launcher_loss);
std::string check_interface(std::string_view text);
std::string check_path(std::string_view text);
std::string check_data_prefix(std::string_view text);
std::string check_weight(std::string_view text);
std::string check_tokenizer(std::string_view text);
std::string check_set_name(std::string_view text);
/// FILE of "sentencepiece:FILE" and "hf:FILE", as a view into `text`; empty for other tokenizers.
std::string_view tokenizer_file(std::string_view text);
std::string check_env_name(std::string_view text);
std::string check_env_pattern(std::string_view text);
std::string check_preset(std::string_view text);
/// "13": topology.pipeline_stage_layers.
std::string check_layer_count(std::string_view text);
/// The number; 0 for other text.
std::int64_t layer_count(std::string_view text);
std::string check_attention_layer(std::string_view text);
/// "app", "software" ...: [recovery].
std::string check_failure_class(std::string_view text);
/// "75" or "64-69".
std::string check_exit_codes(std::string_view text);
/// Whether an item of such a list means `code`.
bool names_exit_code(const std::vector<std::string>& items, int code);
/// "ignore", "skip", "stop" or "rollback N": trainer.on_nonfinite and the like. Which of them a key
/// takes is a rule of validate().
std::string check_step_policy(std::string_view text);
/// N of "rollback N"; 0 for other policies.
std::int64_t rollback_steps(std::string_view policy);
std::string check_any(std::string_view text);

}  // namespace sortie::config
