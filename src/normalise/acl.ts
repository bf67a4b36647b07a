/**
 * POSIX ACLs as the kernel's extended attributes carry them (linux/posix_acl_xattr.h): version 2 in 4 bytes,
 * then entries of tag (2), permissions (2) and id (4), little-endian.
 */

const VERSION = 2;
const HEADER_BYTES = 4;
const ENTRY_BYTES = 8;
const TAG = { groupOwner: 0x04, user: 0x02, group: 0x08, mask: 0x10 } as const;

type AclEntry = { readonly tag: number; permissions: number; readonly id: number };

export type StrippedAcl =
  /** Nobody that is looked for is named. */
  | { readonly kind: 'clean' }
  /** The ACL without the entries; `bytes` is a valid attribute value. */
  | { readonly kind: 'stripped'; readonly bytes: Buffer }
  /** Not a version 2 ACL. */
  | { readonly kind: 'unreadable' };

const decode = (value: Uint8Array): AclEntry[] | undefined => {
  const view = Buffer.from(value.buffer, value.byteOffset, value.byteLength);
  if (view.length < HEADER_BYTES || view.readUInt32LE(0) !== VERSION) return undefined;
  if ((view.length - HEADER_BYTES) % ENTRY_BYTES !== 0) return undefined;
  const entries: AclEntry[] = [];
  for (let at = HEADER_BYTES; at < view.length; at += ENTRY_BYTES) {
    entries.push({
      tag: view.readUInt16LE(at),
      permissions: view.readUInt16LE(at + 2),
      id: view.readUInt32LE(at + 4),
    });
  }
  return entries;
};

const encode = (entries: readonly AclEntry[]): Buffer => {
  const bytes = Buffer.alloc(HEADER_BYTES + entries.length * ENTRY_BYTES);
  bytes.writeUInt32LE(VERSION, 0);
  entries.forEach((entry, index) => {
    const at = HEADER_BYTES + index * ENTRY_BYTES;
    bytes.writeUInt16LE(entry.tag, at);
    bytes.writeUInt16LE(entry.permissions, at + 2);
    bytes.writeUInt32LE(entry.id, at + 4);
  });
  return bytes;
};

/**
 * Takes the entries that name the user `uid` or the group `gid` out of an ACL. Nobody else's rights change:
 * the mask stays as it is while other named entries need it; with the last of them it goes, and the owning
 * group keeps what the mask had left it. So an ACL that was only these entries becomes plain mode bits again.
 */
export const stripAcl = (value: Uint8Array, uid: number, gid: number): StrippedAcl => {
  const entries = decode(value);
  if (entries === undefined) return { kind: 'unreadable' };
  const kept = entries.filter(
    ({ tag, id }) => !(tag === TAG.user && id === uid) && !(tag === TAG.group && id === gid),
  );
  if (kept.length === entries.length) return { kind: 'clean' };
  if (kept.some(({ tag }) => tag === TAG.user || tag === TAG.group)) {
    return { kind: 'stripped', bytes: encode(kept) };
  }
  const mask = kept.find(({ tag }) => tag === TAG.mask)?.permissions ?? 7;
  for (const entry of kept) if (entry.tag === TAG.groupOwner) entry.permissions &= mask;
  return { kind: 'stripped', bytes: encode(kept.filter(({ tag }) => tag !== TAG.mask)) };
};
