#include "launcher/shell/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>
#include <string_view>

#include "launcher/shell/shell_history.h"

namespace sortie::launcher {

/// Callbacks of libedit.
struct LineEditorCalls {
  static LineEditor& of(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<LineEditor*>(self);
  }

  static char* prompt(EditLine* editor) { return of(editor).prompt_.data(); }

  /// Handles a byte of the pipe. Returns true if read() must return.
  static bool woken(EditLine* editor, LineEditor& self) {
    char what = 0;
    if (::read(self.wake_, &what, 1) != 1) return false;
    if (what == LineEditor::kResize) el_resize(editor);
    if (what == LineEditor::kShow) {
      const std::string text = "\r\x1b[J" + self.to_show_();
      if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) return false;
      el_set(editor, EL_REFRESH);
    }
    if (what != LineEditor::kInterrupt && what != LineEditor::kEnd) return false;
    self.why_ = what == LineEditor::kEnd ? LineEditor::Read::Kind::end
                                         : LineEditor::Read::Kind::interrupted;
    return true;
  }

  static int get(EditLine* editor, wchar_t* out) {
    LineEditor& self = of(editor);
    std::mbstate_t state{};
    for (;;) {
      pollfd ready[] = {{STDIN_FILENO, POLLIN, 0}, {self.wake_, POLLIN, 0}};
      if (::poll(ready, 2, -1) < 0) continue;
      if (ready[1].revents != 0) {
        if (woken(editor, self)) return -1;
        continue;
      }
      char byte = 0;
      const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) return 0;
      const std::size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == static_cast<std::size_t>(-2)) continue;  // incomplete multibyte character
      if (used == static_cast<std::size_t>(-1)) *out = static_cast<unsigned char>(byte);
      return 1;
    }
  }

  static unsigned char complete(EditLine* editor, int) {
    const LineInfo* line = el_line(editor);
    const std::string_view before(line->buffer,
                                  static_cast<std::size_t>(line->cursor - line->buffer));
    const std::size_t blank = before.find_last_of(" \t");
    const std::string_view word = before.substr(blank == before.npos ? 0 : blank + 1);
    // + and - have a meaning only at the start of a line.
    const bool changes = before == word && (word.starts_with('+') || word.starts_with('-'));
    if (!word.starts_with('@') && !changes) return CC_ERROR;
    std::vector<std::string> fitting = of(editor).words_();
    std::erase_if(fitting, [&](std::string& name) {
      name[0] = word[0];
      return !name.starts_with(word);
    });
    if (fitting.empty()) return CC_ERROR;
    std::string common = fitting.front();
    for (const std::string& name : fitting)
      common.resize(
          static_cast<std::size_t>(std::ranges::mismatch(common, name).in1 - common.begin()));
    if (fitting.size() == 1) common += ' ';
    if (common.size() > word.size())
      return el_insertstr(editor, common.c_str() + word.size()) == 0 ? CC_REFRESH : CC_ERROR;
    constexpr std::size_t kShown = 64;
    std::string list = "\r\n";
    for (std::size_t i = 0; i < std::min(fitting.size(), kShown); ++i) list += fitting[i] + "  ";
    list += fitting.size() > kShown ? "...\r\n" : "\r\n";
    if (::write(STDOUT_FILENO, list.data(), list.size()) < 0) return CC_ERROR;
    return CC_REDISPLAY;
  }
};

LineEditor::LineEditor(int wake, std::function<std::vector<std::string>()> words,
                       std::function<std::string()> to_show)
    : wake_(wake), words_(std::move(words)), to_show_(std::move(to_show)) {
  std::setlocale(LC_CTYPE, "");
  history_ = history_init();
  editor_ = el_init("sortie", stdin, stdout, stderr);
  if (editor_ == nullptr || history_ == nullptr) return;  // read() then returns Kind::end
  HistEvent event;
  ::history(history_, &event, H_SETSIZE, static_cast<int>(kHistoryLines));
  ::history(history_, &event, H_SETUNIQUE, 1);
  el_set(editor_, EL_CLIENTDATA, static_cast<void*>(this));
  el_set(editor_, EL_PROMPT, &LineEditorCalls::prompt);
  el_set(editor_, EL_EDITOR, "emacs");
  el_set(editor_, EL_HIST, ::history, history_);
  el_set(editor_, EL_GETCFN, &LineEditorCalls::get);
  el_set(editor_, EL_ADDFN, "complete-host", "Complete a host or a group",
         &LineEditorCalls::complete);
  el_set(editor_, EL_BIND, "^I", "complete-host", nullptr);
  el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_source(editor_, nullptr);  // ~/.editrc, for vi keys and the like
}

LineEditor::~LineEditor() {
  if (editor_ != nullptr) el_end(editor_);
  if (history_ != nullptr) history_end(history_);
}

LineEditor::Read LineEditor::read(const std::string& prompt) {
  if (editor_ == nullptr || history_ == nullptr) return {};
  prompt_ = prompt;
  why_ = Read::Kind::end;
  int count = 0;
  // libedit sets the terminal modes only after it has printed the prompt. A Ctrl-D in between would
  // not end the input, so set them before.
  el_set(editor_, EL_PREP_TERM, 1);
  const char* line = el_gets(editor_, &count);
  if (line == nullptr || count <= 0) {
    std::fputs(why_ == Read::Kind::interrupted ? "^C\n" : "\n", stdout);
    std::fflush(stdout);
    return {why_, ""};
  }
  std::string text(line, static_cast<std::size_t>(count));
  if (text.ends_with('\n')) text.pop_back();
  return {Read::Kind::line, std::move(text)};
}

void LineEditor::remember(const std::string& line) {
  HistEvent event;
  if (history_ != nullptr) ::history(history_, &event, H_ENTER, line.c_str());
}

}  // namespace sortie::launcher
