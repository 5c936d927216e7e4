// Later state of files: temporary ones whose writers are gone, and open ones that have lost their name.
#pragma once

#include <filesystem>

namespace bitloom {

// Removes the temporary files of write_atomically() (core/file.h) in a folder whose writers are gone, whatever they were to
// become; write_atomically() itself removes those of the file that it writes. A writer holds a lock on its temporary, by which
// the system tells whether it lives: process ids would not do, since containers and hosts repeat those. Of other hosts, whose
// locks some file systems do not show, those go that nobody has written to for an hour. Trouble is ignored, since what stays
// costs room alone.
void remove_abandoned_temporaries(const std::filesystem::path& folder);

// Whether the path, if a symbolic link not what it leads to, names the file that is open as `descriptor`: it does not once the
// file was deleted or replaced.
bool names_open_file(const std::filesystem::path& path, int descriptor);

// The errno with which the system refuses to open the file for reading; 0 where it does not.
int opening_error(const std::filesystem::path& path);

}  // namespace bitloom
