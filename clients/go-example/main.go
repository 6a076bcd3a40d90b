// How a Go program uses Shoal: `go run . objects` for shoal.v1.ObjectStore, `go run . pairs` for io.grpc.KeyValueService.
//
// Each step checks what it got, and the exit code says whether all of it was as it must be. docs/clients/go.md has the rest:
// which failures may be sent again, and limits.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// The longest message either way: a value of 4 MiB with everything around it. gRPC's own default is 4 MiB.
const messageBytesMax = 4<<20 + 256<<10

func main() {
	log.SetFlags(0)
	server := flag.String("server", "127.0.0.1:7411", "host:port of the server")
	authority := flag.String("ca", "", "file with the authority (PEM) that vouches for the server: turns TLS on")
	token := flag.String("token-file", "", "file with a bearer token")
	flag.Parse()

	connection, err := connect(*server, *authority, *token)
	if err != nil {
		log.Fatalf("connect: %v", err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	if flag.NArg() == 0 {
		log.Fatal("say what to show: objects, pairs or both")
	}
	for _, what := range flag.Args() {
		switch what {
		case "objects":
			err = objects(ctx, connection)
		case "pairs":
			err = pairs(ctx, connection)
		default:
			err = fmt.Errorf("%s is neither objects nor pairs", what)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("all as it must be")
}

// connect opens a channel; the first call connects it.
func connect(server, authority, tokenFile string) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)),
		// The program decides what is sent again, since it knows of request ids: a service config from the DNS does not.
		grpc.WithDisableServiceConfig(),
	}
	if authority == "" {
		options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	} else {
		pem, err := os.ReadFile(authority)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", authority)
		}
		options = append(options, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})))
	}
	if tokenFile != "" {
		text, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, err
		}
		bearer := "Bearer " + strings.TrimSpace(string(text))
		options = append(options, grpc.WithUnaryInterceptor(
			func(ctx context.Context, method string, request, reply any, connection *grpc.ClientConn,
				invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", bearer)
				return invoke(ctx, method, request, reply, connection, options...)
			}), grpc.WithStreamInterceptor(
			func(ctx context.Context, description *grpc.StreamDesc, connection *grpc.ClientConn, method string,
				open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", bearer)
				return open(ctx, description, connection, method, options...)
			}))
	}
	return grpc.NewClient(server, options...)
}
