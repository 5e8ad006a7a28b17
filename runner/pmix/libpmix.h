// libpmix, loaded at run time: a table of pointers to the functions that sortie-pmix calls. A host
// without libpmix gets one clear error, and nothing here links against it. Types and constants come
// from the PMIx headers; their macros that call into the library are not used.
#pragma once

#include <pmix.h>
#include <pmix_server.h>

#include <string>

#include "common/base/result.h"

namespace sortie::runner {

/// The functions of libpmix, and descriptions of its errors.
struct Libpmix {
  std::string path;  // name that was passed to dlopen
  decltype(&PMIx_Get_version) get_version = nullptr;
  decltype(&PMIx_Error_string) error_string = nullptr;
  decltype(&PMIx_server_init) server_init = nullptr;
  decltype(&PMIx_server_finalize) server_finalize = nullptr;
  decltype(&PMIx_Register_event_handler) register_event_handler = nullptr;
  decltype(&PMIx_server_register_nspace) register_nspace = nullptr;
  decltype(&PMIx_server_register_client) register_client = nullptr;
  decltype(&PMIx_server_setup_fork) setup_fork = nullptr;
  decltype(&PMIx_server_dmodex_request) dmodex_request = nullptr;
  decltype(&PMIx_Get_nb) get_nb = nullptr;

  /// Loads libpmix.so.2, else libpmix.so; SORTIE_LIBPMIX names another library. Never unloaded: its
  /// threads may still run. ErrorCode::unsupported: missing or too old.
  static Result<Libpmix> load();

  /// "4.2.2", extracted from the library's longer version text.
  std::string version() const;
  /// Major version, 0 if the text has none.
  int major() const;
  /// "<what>: <libpmix's text> (<number>)".
  Error error(std::string_view what, pmix_status_t status) const;
};

}  // namespace sortie::runner
