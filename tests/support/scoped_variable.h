// ScopedVariable: sets a variable of this process's environment and restores it in the destructor.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace sortie::test {

class ScopedVariable {
 public:
  /// Unsets the variable if `value` is nullopt.
  ScopedVariable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;
  ~ScopedVariable() { set(before_); }

 private:
  void set(const std::optional<std::string>& value) {
    if (value)
      ::setenv(name_, value->c_str(), 1);
    else
      ::unsetenv(name_);
  }

  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace sortie::test
