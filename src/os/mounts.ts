/** The storage that a file lies on: the mount (mount-table.ts), and the file system's own id. */
import { XceError } from '../base/errors.ts';
import { errnoName, readFsid } from './libc.ts';
import { type MountPlace, withPlace } from './mount-table.ts';

/** `source`, `type` and `fsid` tell storages apart. */
export type MountFacts = MountPlace & {
  /** f_fsid of statfs(2) in hex as `stat -f -c %i`; '0' where the file system has none. */
  readonly fsid: string;
};

/** As placeOf, with the id. Throws XceError 'os'. */
export const mountOf = (file: string | Buffer | number): MountFacts =>
  withPlace(file, (place, fd) => {
    const fsid = readFsid(fd);
    if (typeof fsid === 'number') {
      throw new XceError('os', `statfs of ${place.path} failed: ${errnoName(-fsid)}`, { at: place.path });
    }
    return { ...place, fsid };
  });

/**
 * Whether two looks, on this host or on two, saw the same storage: source (with the part that is mounted),
 * type and file system id. Mount points, ids and options may differ between hosts and are for the caller.
 */
export const sameMount = (
  a: Pick<MountFacts, 'source' | 'type' | 'fsid'>,
  b: Pick<MountFacts, 'source' | 'type' | 'fsid'>,
): boolean => a.source === b.source && a.type === b.type && a.fsid === b.fsid;

/** The mount as one line for people. */
export const describeMount = (mount: Pick<MountFacts, 'source' | 'type' | 'fsid'>): string =>
  `${mount.source} (${mount.type}, fsid ${mount.fsid})`;
