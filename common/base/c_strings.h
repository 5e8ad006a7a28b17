// Texts in the form that exec() and posix_spawn() take.
#pragma once

#include <string>
#include <vector>

namespace sortie {

/// Pointers to the texts, and a null pointer at the end; valid until `texts` changes. exec() and
/// posix_spawn() take them without const, and write nothing. Allocates memory once.
inline std::vector<char*> c_strings(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace sortie
