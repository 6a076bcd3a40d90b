"""Reads archives with Python's tarfile: takes paths from standard input, prints a line of JSON for each.

entries: name (hex) -> [kind, content or target (hex), whole seconds, mode]; error: why it stopped; failed: entries that cannot be extracted."""
import json, math, os, sys, tarfile

# A negative size makes tarfile read the same header again and again.
MEMBERS_MAX = 100


def look(path):
    entries, failed, error = {}, 0, None
    try:
        with tarfile.open(path, 'r:') as tar:
            for number, member in enumerate(tar):
                if number == MEMBERS_MAX:
                    raise ValueError('a loop of members')
                name = os.fsencode(member.name).rstrip(b'/').hex()
                content = ''
                if member.islnk():
                    found = entries.get(os.fsencode(member.linkname).rstrip(b'/').hex())
                    if found and found[0] != 'folder' and member.linkname != member.name:
                        entries[name] = found
                    else:
                        failed += 1
                    continue
                if member.isfile() or member.type not in tarfile.SUPPORTED_TYPES:
                    kind, content = 'file', tar.extractfile(member).read().hex()
                elif member.isdir():
                    kind = 'folder'
                elif member.issym():
                    kind, content = 'symlink', os.fsencode(member.linkname).hex()
                else:
                    kind = 'special'
                seconds = math.floor(member.mtime) if abs(member.mtime) < 1e18 else None
                entries[name] = [kind, content, seconds, member.mode & 0o7777]
    except Exception as problem:
        error = '%s: %s' % (type(problem).__name__, problem)
    return {'entries': entries, 'failed': failed, 'error': error}


for line in sys.stdin:
    print(json.dumps(look(line.rstrip('\n'))), flush=True)
