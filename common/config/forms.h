// Checks of text with a prescribed form. Each returns "why; what to do", or "" for valid text.
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
/// How long hosts hold their ranks according to runner.on_launcher_loss; 0 = not at all.
std::chrono::milliseconds launcher_hold(std::string_view on_launcher_loss);
std::string check_interface(std::string_view text);
std::string check_path(std::string_view text);
std::string check_data_prefix(std::string_view text);
std::string check_weight(std::string_view text);
std::string check_tokenizer(std::string_view text);
std::string check_set_name(std::string_view text);
/// FILE of "sentencepiece:FILE" and "hf:FILE", a view into `text`; empty for other tokenizers.
std::string_view tokenizer_file(std::string_view text);
std::string check_env_name(std::string_view text);
std::string check_env_pattern(std::string_view text);
std::string check_preset(std::string_view text);
/// Checks an item of topology.pipeline_stage_layers, like "13".
std::string check_layer_count(std::string_view text);
/// The number in such an item; 0 if the text is invalid.
std::int64_t layer_count(std::string_view text);
std::string check_attention_layer(std::string_view text);
/// Checks a failure class of [recovery]: "app", "software" ...
std::string check_failure_class(std::string_view text);
/// Checks an exit code or a range of them: "75" or "64-69".
std::string check_exit_codes(std::string_view text);
/// Whether any item of a list of such codes and ranges includes `code`.
bool names_exit_code(const std::vector<std::string>& items, int code);
/// Checks "ignore", "skip", "stop" or "rollback N", the values of trainer.on_nonfinite and the
/// like. validate() has the rule which of them each key allows.
std::string check_step_policy(std::string_view text);
/// N of "rollback N"; 0 for other policies.
std::int64_t rollback_steps(std::string_view policy);
std::string check_any(std::string_view text);

}  // namespace sortie::config
