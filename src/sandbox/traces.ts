/** Reads the kernel's tables for one uid. Pure; every function says what it takes for a line it cannot read. */

/** Whether a process of the given status text (proc(5)) has the id as any of its uids, gids or groups.
 * Undefined when the text has no such lines: not a status that was read in full. */
export const processHasId = (status: string, id: number): boolean | undefined => {
  const line = (name: string): readonly number[] | undefined => {
    const text = new RegExp(`^${name}:([\\t 0-9]*)$`, 'm').exec(status)?.[1];
    return text
      ?.split(/[\t ]+/)
      .filter((word) => word !== '')
      .map(Number);
  };
  const uids = line('Uid');
  const gids = line('Gid');
  const groups = line('Groups');
  if (uids?.length !== 4 || gids?.length !== 4 || groups === undefined) return undefined;
  return [...uids, ...gids, ...groups].includes(id);
};

/** Name and state letter of a status text, for a message. */
export const describeStatus = (status: string): { readonly name: string; readonly state: string } => ({
  name: /^Name:\t(.*)$/m.exec(status)?.[1] ?? '?',
  state: /^State:\t(\S)/m.exec(status)?.[1] ?? '?',
});

/** One object of /proc/sysvipc/{shm,sem,msg} whose owner or maker has the id. */
export type SysvObject = { readonly key: string; readonly id: string };

/**
 * The objects of a /proc/sysvipc table that an id owns or has made. Columns go by their names in the first line.
 * Undefined for a table that does not have them.
 */
export const findSysvObjects = (table: string, id: number): readonly SysvObject[] | undefined => {
  const [head, ...lines] = table.split('\n').filter((line) => line.trim() !== '');
  const columns = head?.trim().split(/\s+/) ?? [];
  const at = (name: string): number => columns.indexOf(name);
  const owners = ['uid', 'gid', 'cuid', 'cgid'].map(at);
  const key = at('key');
  const own = columns.findIndex((name) => /^(shm|sem|msq)id$/.test(name));
  if (key === -1 || own === -1 || owners.includes(-1)) return undefined;
  const found: SysvObject[] = [];
  for (const line of lines) {
    const words = line.trim().split(/\s+/);
    // shmids have two size columns more than names on no kernel; a short line is one that was cut.
    if (words.length < columns.length) return undefined;
    if (owners.some((column) => Number(words[column]) === id)) {
      found.push({ key: words[key] ?? '?', id: words[own] ?? '?' });
    }
  }
  return found;
};

/** How many keys a /proc/key-users table counts for a uid. Undefined for a table with a line that is none of its. */
export const countKeys = (table: string, uid: number): number | undefined => {
  let count = 0;
  for (const line of table.split('\n').filter((text) => text !== '')) {
    // uid: usage keys/instantiated owned/quota bytes/quota
    const row = /^ *([0-9]+): +[0-9]+ ([0-9]+)\/[0-9]+ [0-9]+\/[0-9]+ [0-9]+\/[0-9]+$/.exec(line);
    if (row === null) return undefined;
    if (Number(row[1]) === uid) count = Number(row[2]);
  }
  return count;
};
