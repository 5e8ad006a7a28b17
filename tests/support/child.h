// Child processes of tests: started without a shell, killed with the object or when the test
// process dies.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace sortie::testing {

/// Result of run(): stdout and stderr in one text. `code` is the exit code, 128 + signal, or 127.
struct Finished {
  int code = 127;
  std::string output;
};
Finished run(const std::vector<std::string>& argv);

/// Writes `text` to a file and sets its mode.
void write_text(const std::string& path, const std::string& text, int mode = 0600);
std::string read_text(const std::string& path);

class Child {
 public:
  Child() = default;
  /// Starts `argv`; stdout and stderr are appended to `log`.
  Child(const std::vector<std::string>& argv, const std::string& log);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();
  pid_t pid() const { return pid_; }
  bool running();
  void stop();

 private:
  pid_t pid_ = -1;
};

}  // namespace sortie::testing
