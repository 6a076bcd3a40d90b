// A page of figures before its first figures, or without the right to see them.
import { seesFigures } from "../app/session";
import { T } from "../texts";
import { Empty } from "../ui/parts";

export function Waiting(props: { title: string }) {
  return (
    <>
      <h1>{props.title}</h1>
      {seesFigures() ? <Empty title={T.loading} /> : <Empty title={T.errors.noFigures}>{T.errors.noFiguresAdvice}</Empty>}
    </>
  );
}
