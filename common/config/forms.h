// Checks of text that has a form of its own. Each gives "why; what to do", and nothing for good
// text.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

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
std::string check_attention_layer(std::string_view text);
std::string check_any(std::string_view text);

}  // namespace sortie::config
