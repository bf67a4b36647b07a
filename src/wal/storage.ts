/** What lies under the log directory, as the log keeps it in each header. */
export type StorageFacts = {
  /** Type of the file system as the kernel names it ('nfs4', 'fuse.glusterfs', 'ext4'). */
  readonly type: string;
  /** Mount source, and mount point. */
  readonly source: string;
  readonly path: string;
};

/** Says what the directory lies on. Throws XceError 'storage-unfit' for storage that the configuration excludes. */
export type InspectStorage = (directory: string) => Promise<StorageFacts>;

export const encodeStorage = ({ type, source, path }: StorageFacts): string =>
  JSON.stringify({ type, source, path });

/** The type in a header's storage text; undefined when it says none. */
export const storageTypeOf = (text: string): string | undefined => {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
  if (typeof value !== 'object' || value === null || !('type' in value)) return undefined;
  return typeof value.type === 'string' ? value.type : undefined;
};
