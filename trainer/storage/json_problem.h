// Messages about errors in a JSON file: the library's exceptions name neither line nor file.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace sortie::trainer {

/// Returns a message for an exception that nlohmann::json threw while `text` was parsed or read:
/// "line 3, column 7: not valid JSON", "no \"vocab\"", "a string, where a number is expected".
/// Other exceptions are quoted in parentheses. The caller adds the file before and the advice
/// after.
std::string json_problem(const std::exception& error, std::string_view text);

}  // namespace sortie::trainer
