/** What lies under the log directory, as the log keeps it in the header of each epoch. */
export type StorageFacts = {
  /** Type of the file system as the kernel names it ('nfs4', 'ext4'). */
  readonly type: string;
  /** Mount source, and mount point. */
  readonly source: string;
  readonly path: string;
  /** What a probe has shown, where there was one. */
  readonly probe?: ProbeReport;
};

export type ProbeReport = {
  /** The promises that were seen kept. */
  readonly kept: readonly string[];
  /** The other host; null where one host tried by itself. Of so many looks of each host so many showed an old state. */
  readonly peer: { readonly node: string; readonly rounds: number; readonly stale: number } | null;
};

/** How the log asks about its storage. All throw XceError 'storage-unfit', or 'log-missing' without a directory. */
export type StoragePort = {
  /** Type and mount options; writes nothing. Enough for a reader. */
  look(directory: string): Promise<StorageFacts>;
  /**
   * For whoever is to write: the same, and what the type must be shown to have; on shared storage also what a probe
   * of this host with another has shown, which must have been of the mount as it is now. Writes nothing.
   */
  admit(directory: string): Promise<StorageFacts>;
  /** For a new log: tries each promise on files of its own; on shared storage, where it takes two hosts, `admit`. */
  probe(directory: string): Promise<StorageFacts>;
};

export const encodeStorage = ({ type, source, path, probe }: StorageFacts): string =>
  JSON.stringify({ type, source, path, probe });

/** What a header says of its storage, for people; its text as it is where that is no JSON. */
export const decodeStorage = (text: string): unknown => {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return text;
    throw error;
  }
};

/** The type in a header's storage text; undefined when it says none. */
export const storageTypeOf = (text: string): string | undefined => {
  const value = decodeStorage(text);
  if (typeof value !== 'object' || value === null || !('type' in value)) return undefined;
  return typeof value.type === 'string' ? value.type : undefined;
};
